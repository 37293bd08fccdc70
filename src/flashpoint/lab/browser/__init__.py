"""Models of runs in a page that runs them: graphs, a runtime for browsers, and the page itself."""
