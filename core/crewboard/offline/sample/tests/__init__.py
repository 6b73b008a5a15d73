"""Run with python3 -m unittest -q from the folder above."""
