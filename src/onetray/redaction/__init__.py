"""Hide what a kind or a flow redacts, in all values of a job that a reader gets."""
