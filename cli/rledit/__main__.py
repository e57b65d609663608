from rledit.main import cli

cli()
