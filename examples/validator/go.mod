module validator

go 1.21

require hostler v0.0.0

replace hostler => ../../sdk/go
