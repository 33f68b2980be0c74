class Mine(KeyboardInterrupt):
    pass


raise Mine("sub")
