"""What a client may take: connections, time, bytes, requests a second."""
