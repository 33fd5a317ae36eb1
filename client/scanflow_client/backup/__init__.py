"""Backups of a home: one archive, made while everything runs, checked when it is made and when it is restored."""
