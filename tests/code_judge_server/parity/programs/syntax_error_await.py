await something()
