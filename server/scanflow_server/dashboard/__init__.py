"""The dashboard: the server's pages for a browser, each from what the API's routes return, and live over one stream."""
