"""Hide what a kind or a flow redacts: in one value, and in everything that is shown of a job."""
