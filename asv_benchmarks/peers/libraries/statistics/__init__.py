"""Libraries of moving statistics, and of statistics with missing values."""
