"""Why operators did or did not run side by side, what would help, and how two artifacts differ."""
