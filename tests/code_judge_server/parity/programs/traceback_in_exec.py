code = "def f():\n    return 1 / 0\nf()\n"
exec(compile(code, "<generated>", "exec"))
