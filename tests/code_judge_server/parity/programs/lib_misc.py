import calendar, cmd, difflib, fnmatch, glob, ipaddress, numbers, shlex, timeit, types, platform
print(calendar.month(2024, 2), list(difflib.unified_diff(["a"], ["b"], lineterm="")), fnmatch.filter(["a.py", "b.c"], "*.py"))
print(glob.glob("*.py"), ipaddress.ip_network("10.0.0.0/30").num_addresses, shlex.split("a 'b c'"), isinstance(1, numbers.Integral))
print(timeit.timeit("1", number=10) >= 0, types.SimpleNamespace(a=1), platform.python_implementation(), platform.system())
