"""Form fields."""
