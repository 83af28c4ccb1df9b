"""Tell whoever waits that something was written: within a process, between processes, by database."""
