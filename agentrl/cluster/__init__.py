"""Processes: Ray, roles and worker groups. The only room that imports ray."""
