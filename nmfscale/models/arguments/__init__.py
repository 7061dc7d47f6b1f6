"""Arguments of estimators and of their methods: checked, read, matched by name."""
