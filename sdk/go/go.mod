module hostler

go 1.21
