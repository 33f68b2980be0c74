from datetime import date, datetime, timedelta, timezone
import time, zoneinfo
moment = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=timezone.utc)
print(moment, moment.isoformat(), moment + timedelta(days=366), moment.strftime("%A %d %B %Y %H:%M:%S %z"), repr(moment))
print(date.fromisoformat("2023-12-31").isocalendar(), datetime.strptime("01/02/03", "%d/%m/%y"), time.tzname, time.timezone)
print(timedelta(seconds=12345.678), time.gmtime(0), time.strftime("%c", time.gmtime(0)))
