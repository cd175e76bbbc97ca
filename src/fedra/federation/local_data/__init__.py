"""A site's data: read, labeled, divided and checked where they are."""
