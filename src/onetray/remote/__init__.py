"""The engine's verbs and reads over HTTP. See docs/remote.md."""
