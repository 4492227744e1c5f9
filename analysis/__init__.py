"""The papers' theory as code."""
