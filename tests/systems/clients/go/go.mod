module holdfast/tests/clients/go

go 1.21
