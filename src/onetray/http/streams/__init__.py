"""Server-sent events: the feed, one job, and one reader for all streams of a process."""
