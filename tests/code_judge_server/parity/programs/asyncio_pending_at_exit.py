import asyncio
loop = asyncio.new_event_loop()
async def wait():
    await asyncio.sleep(10)
task = loop.create_task(wait(), name="waiter")
loop.call_later(0.01, loop.stop)
loop.run_forever()
print("stopped")
