"""The sandbox in which an agent's file tools and commands run."""
