"""Prometheus and Grafana for the instances of an inventory: what is scraped, recorded, warned of and shown.

`book` reads catalog/monitoring.yml, `targets` finds the addresses, `render` writes the files. Runs on the controller.
"""
