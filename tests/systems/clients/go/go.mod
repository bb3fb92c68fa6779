module holdfast/tests/systems/clients/go

go 1.21
