import asyncio
async def serve(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_unix_server(serve, "socket")
    reader, writer = await asyncio.open_unix_connection("socket")
    writer.write(b"hello\n")
    print(await reader.read())
    writer.close()
    server.close()
asyncio.run(main())
