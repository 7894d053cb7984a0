"""The pictures of the pages: functions that return a figure, called by the directive `picture`."""
