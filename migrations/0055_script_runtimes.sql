-- What a script that is text was checked with: the interpreter and its version. Null for wasm, which brings its own.
ALTER TABLE heddle.script_versions ADD COLUMN runtime text;
