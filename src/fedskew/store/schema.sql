-- The tables of a run store. A store that lacks some gets them when it is opened for writing.
CREATE TABLE IF NOT EXISTS comparisons (id INTEGER PRIMARY KEY, title TEXT NOT NULL, created TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY,
  comparison INTEGER REFERENCES comparisons(id),
  name TEXT NOT NULL,              -- the method as the user wrote it
  experiment TEXT NOT NULL,        -- complete TOML
  experiment_hash TEXT NOT NULL,
  seed INTEGER NOT NULL,
  partition_seed INTEGER NOT NULL,
  status TEXT NOT NULL,            -- planned, running, finished, interrupted, diverged, failed
  message TEXT NOT NULL DEFAULT '',
  rounds INTEGER NOT NULL,         -- requested number of rounds
  rounds_done INTEGER NOT NULL DEFAULT 0,
  created TEXT NOT NULL,
  updated TEXT NOT NULL,
  facts TEXT NOT NULL DEFAULT '{}' -- JSON: versions, engine trial, data fingerprint, partition summary
);
CREATE TABLE IF NOT EXISTS measurements (
  run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
  round INTEGER NOT NULL,
  client INTEGER,
  split TEXT NOT NULL,
  name TEXT NOT NULL,
  value REAL
);
CREATE INDEX IF NOT EXISTS measurements_by_run ON measurements(run, round);
CREATE TABLE IF NOT EXISTS partitions (
  run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
  client INTEGER NOT NULL,
  client_name TEXT NOT NULL,
  label TEXT NOT NULL,
  rows INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS partitions_by_run ON partitions(run);
CREATE TABLE IF NOT EXISTS test_rows (
  run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
  round INTEGER NOT NULL,
  compressed BLOB NOT NULL         -- primary metric of each test row: float32, little-endian, compressed by zlib
);
CREATE TABLE IF NOT EXISTS test_units (
  run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
  compressed BLOB NOT NULL         -- ids of the units of the values in test_rows, ascending: `test_rows.packed`
);
CREATE TABLE IF NOT EXISTS site_rows (
  run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
  round INTEGER NOT NULL,
  compressed BLOB NOT NULL         -- as in test_rows, of the rows at the sites, each under its site's model
);
CREATE TABLE IF NOT EXISTS site_units (
  run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
  compressed BLOB NOT NULL         -- as in test_units, of the values in site_rows
);
