"""The playground: an HTTP server of trained models, and its page."""
