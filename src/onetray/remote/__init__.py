"""An engine that is elsewhere: the same verbs and reads, asked of a server by HTTP. See docs/remote.md."""
