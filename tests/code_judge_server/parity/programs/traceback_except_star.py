try:
    raise ExceptionGroup("both", [ValueError(1), TypeError(2)])
except* ValueError as group:
    print("values", group.exceptions)
