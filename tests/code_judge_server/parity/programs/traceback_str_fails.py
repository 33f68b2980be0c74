class Bad(Exception):
    def __str__(self):
        raise ValueError("no str")


raise Bad(1)
