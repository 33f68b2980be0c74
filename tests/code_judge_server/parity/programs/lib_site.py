import site, sys, sysconfig
print(site.getsitepackages(), site.ENABLE_USER_SITE, sys.path[1:], sysconfig.get_path("purelib"))
