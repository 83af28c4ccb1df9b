"""Server-sent events: one reader of the feed for all streams, the feed, one job."""
