"""The English-German corpus of documents that Debian's packages hold: fetched, aligned, split."""
