"""placeholder"""
TASKS = {}
