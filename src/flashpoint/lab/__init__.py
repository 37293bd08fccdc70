"""The lab: what trains, measures and reports; its extra is ``lab``, nothing outside imports it."""
