class AppError(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code

    def __str__(self):
        return f"<{self.code}>"


class Inner:
    class Deep(AppError):
        pass


raise Inner.Deep(5, "text")
