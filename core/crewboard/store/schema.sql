-- The tables and functions of crewboard, version 2. Made once in a database; every team of the database is in them.
--
-- Other programs call the functions, too: `SELECT crewboard.append('api', 'inbox/scout.jsonl', …)`. Writing functions
-- return a negative number if they did nothing: -1 the lease was lost, -2 the log does not end there, -3 no folder.

CREATE SCHEMA crewboard;

CREATE TABLE crewboard.version (number int NOT NULL);
INSERT INTO crewboard.version VALUES (2);

-- Versions of entries, their ids and the tokens of leases: none is given twice.
CREATE SEQUENCE crewboard.numbers;

-- `trimmed` is the highest transaction whose rows of `gone` were removed.
CREATE TABLE crewboard.teams (
  name text PRIMARY KEY,
  id bigint NOT NULL DEFAULT nextval('crewboard.numbers'),
  lease_ttl double precision NOT NULL DEFAULT 15 CHECK (lease_ttl > 0),
  trimmed xid8 NOT NULL DEFAULT '0'
);

-- Folders, records and logs. `id` is another one for what is made again under a name; lines belong to it.
CREATE TABLE crewboard.entries (
  team text NOT NULL,
  folder text NOT NULL,
  name text NOT NULL,
  kind text NOT NULL CHECK (kind IN ('folder', 'record', 'log')),
  id bigint NOT NULL UNIQUE,
  version bigint NOT NULL,
  changed timestamptz NOT NULL DEFAULT clock_timestamp(),
  size bigint NOT NULL DEFAULT 0,
  body bytea,
  xid xid8 NOT NULL,
  PRIMARY KEY (team, folder, name)
);
CREATE INDEX entries_xid ON crewboard.entries (team, xid);

-- `upto` is the offset after a line, with its newline. `ident` is the `id` of the object on it.
CREATE TABLE crewboard.lines (
  log bigint NOT NULL,
  upto bigint NOT NULL,
  ident text,
  line bytea NOT NULL,
  PRIMARY KEY (log, upto)
);
CREATE INDEX lines_ident ON crewboard.lines (log, ident) WHERE ident IS NOT NULL;

-- `holder` is a random number of the process that took it, so that taking it again after a lost answer succeeds.
CREATE TABLE crewboard.leases (
  team text NOT NULL,
  folder text NOT NULL,
  name text NOT NULL,
  token bigint NOT NULL,
  holder uuid NOT NULL,
  said bytea NOT NULL DEFAULT '',
  until timestamptz NOT NULL,
  xid xid8 NOT NULL,
  PRIMARY KEY (team, folder, name)
);
CREATE UNIQUE INDEX leases_token ON crewboard.leases (token);
CREATE INDEX leases_xid ON crewboard.leases (team, xid);

-- The ids of entries and the tokens of leases that were removed, and of entries that were moved out of their folder.
CREATE TABLE crewboard.gone (
  team text NOT NULL,
  xid xid8 NOT NULL,
  id bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (team, xid, id)
);

-- Note in `xid` the transaction that writes a row. A reader that asks for the rows of all transactions that had not
-- ended at its last look (`pg_snapshot_xmin`) misses none, unlike with a growing number.
CREATE FUNCTION crewboard.note_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.xid := pg_current_xact_id();
  RETURN NEW;
END $$;

-- Remove the oldest rows of `gone`. A reader that looked before them sees that in `trimmed`, and reads all rows anew.
CREATE FUNCTION crewboard.trim(of_team text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  newest xid8;
BEGIN
  -- No transaction waits for another one here.
  IF NOT pg_try_advisory_xact_lock(hashtextextended('crewboard trim ' || of_team, 0)) THEN RETURN; END IF;
  -- PostgreSQL 14 has no max() of xid8.
  WITH old AS (
    DELETE FROM crewboard.gone WHERE team = of_team AND xid IN (
      SELECT xid FROM crewboard.gone WHERE team = of_team AND at < clock_timestamp() - interval '1 hour'
        ORDER BY xid LIMIT 1000
    ) RETURNING xid
  ) SELECT xid INTO newest FROM old ORDER BY xid DESC LIMIT 1;
  IF newest IS NOT NULL THEN
    UPDATE crewboard.teams SET trimmed = greatest(trimmed, newest) WHERE name = of_team;
  END IF;
END $$;

CREATE FUNCTION crewboard.note_removal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  removed bigint;
BEGIN
  IF TG_TABLE_NAME = 'leases' THEN removed := OLD.token; ELSE removed := OLD.id; END IF;
  -- If the whole team is removed, its own row was the first.
  INSERT INTO crewboard.gone (team, xid, id) SELECT OLD.team, pg_current_xact_id(), removed
    FROM crewboard.teams WHERE name = OLD.team ON CONFLICT DO NOTHING;
  IF FOUND AND random() < 0.01 THEN PERFORM crewboard.trim(OLD.team); END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER note_write BEFORE INSERT OR UPDATE ON crewboard.entries
  FOR EACH ROW EXECUTE FUNCTION crewboard.note_write();
CREATE TRIGGER note_write BEFORE INSERT OR UPDATE ON crewboard.leases
  FOR EACH ROW EXECUTE FUNCTION crewboard.note_write();
CREATE TRIGGER note_removal AFTER DELETE ON crewboard.entries
  FOR EACH ROW EXECUTE FUNCTION crewboard.note_removal();
CREATE TRIGGER note_move AFTER UPDATE OF folder ON crewboard.entries
  FOR EACH ROW WHEN (OLD.folder <> NEW.folder) EXECUTE FUNCTION crewboard.note_removal();
CREATE TRIGGER note_removal AFTER DELETE ON crewboard.leases
  FOR EACH ROW EXECUTE FUNCTION crewboard.note_removal();

CREATE FUNCTION crewboard.folder_of(path text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN strpos(path, '/') = 0 THEN '' ELSE regexp_replace(path, '/[^/]*$', '') END
$$;

CREATE FUNCTION crewboard.name_of(path text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(path, '^.*/', '')
$$;

CREATE FUNCTION crewboard.channel(of_team text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT 'crewboard_' || md5(of_team)
$$;

-- Return true unless a token is given that is not the newest one of its lease, or whose time is up. A taker of the lease
-- waits until the transaction ends.
CREATE FUNCTION crewboard.may_write(of_team text, by_token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF by_token IS NULL THEN RETURN true; END IF;
  PERFORM 1 FROM crewboard.leases
    WHERE token = by_token AND team = of_team AND until > clock_timestamp() FOR SHARE;
  RETURN FOUND;
END $$;

-- Return true if a folder is there, and keep it until the transaction ends. A team's own folder is there while the team is.
CREATE FUNCTION crewboard.has_folder(of_team text, path text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF path = '' THEN
    PERFORM 1 FROM crewboard.teams WHERE name = of_team FOR KEY SHARE;
  ELSE
    PERFORM 1 FROM crewboard.entries
      WHERE team = of_team AND folder = crewboard.folder_of(path) AND name = crewboard.name_of(path)
        AND kind = 'folder' FOR KEY SHARE;
  END IF;
  RETURN FOUND;
END $$;

-- Give a hint of a change that a process waits for. Hints of the others would only slow down commits.
CREATE FUNCTION crewboard.hint(of_team text, path text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF path ~ '^(inbox|requests|tasks|starts)/' OR path ~ '^agents/[^/]+(/spec\.json)?$' OR path = 'config.json' THEN
    PERFORM pg_notify(crewboard.channel(of_team), path);
  END IF;
END $$;

CREATE FUNCTION crewboard.append(
  of_team text, path text, new_line bytea, new_ident text DEFAULT NULL, once boolean DEFAULT false,
  place bigint DEFAULT NULL, again boolean DEFAULT false, by_token bigint DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  in_folder text := crewboard.folder_of(path);
  log_name text := crewboard.name_of(path);
  log_id bigint;
  log_size bigint;
  found_at bigint;
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  -- The row of the log is the lock: no later line is there before an earlier one.
  SELECT id, size INTO log_id, log_size FROM crewboard.entries
    WHERE team = of_team AND folder = in_folder AND name = log_name FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    IF place > 0 THEN RETURN -2; END IF;
    IF NOT crewboard.has_folder(of_team, in_folder) THEN RETURN -3; END IF;
    INSERT INTO crewboard.entries (team, folder, name, kind, id, version)
      VALUES (of_team, in_folder, log_name, 'log', nextval('crewboard.numbers'), 0) ON CONFLICT DO NOTHING;
    SELECT id, size INTO log_id, log_size FROM crewboard.entries
      WHERE team = of_team AND folder = in_folder AND name = log_name FOR NO KEY UPDATE;
  END IF;
  IF once THEN
    SELECT upto INTO found_at FROM crewboard.lines WHERE log = log_id AND ident = new_ident ORDER BY upto LIMIT 1;
    IF FOUND THEN RETURN found_at; END IF;
  END IF;
  IF place <> log_size THEN
    PERFORM 1 FROM crewboard.lines
      WHERE log = log_id AND upto = log_size AND log_size = place + length(new_line) AND line = new_line;
    RETURN CASE WHEN FOUND THEN log_size ELSE -2 END;
  END IF;
  -- The answer to the first attempt was lost. If it was successful, the line is one of the last.
  IF again THEN
    SELECT upto INTO found_at FROM (
      SELECT upto, line FROM crewboard.lines WHERE log = log_id ORDER BY upto DESC LIMIT 1000
    ) AS last WHERE line = new_line LIMIT 1;
    IF FOUND THEN RETURN found_at; END IF;
  END IF;
  log_size := log_size + length(new_line);
  INSERT INTO crewboard.lines VALUES (log_id, log_size, new_ident, new_line);
  UPDATE crewboard.entries
    SET size = log_size, version = nextval('crewboard.numbers'), changed = clock_timestamp() WHERE id = log_id;
  PERFORM crewboard.hint(of_team, path);
  RETURN log_size;
END $$;

CREATE FUNCTION crewboard.put(of_team text, path text, new_body bytea, by_token bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  IF NOT crewboard.has_folder(of_team, crewboard.folder_of(path)) THEN RETURN -3; END IF;
  INSERT INTO crewboard.entries AS old (team, folder, name, kind, id, version, size, body)
    VALUES (of_team, crewboard.folder_of(path), crewboard.name_of(path), 'record', nextval('crewboard.numbers'),
      nextval('crewboard.numbers'), length(new_body), new_body)
    ON CONFLICT (team, folder, name) DO UPDATE
      SET body = new_body, size = length(new_body), version = nextval('crewboard.numbers'),
        changed = clock_timestamp()
      WHERE old.kind = 'record';
  PERFORM crewboard.hint(of_team, path);
  RETURN 0;
END $$;

CREATE FUNCTION crewboard.make_folder(of_team text, path text, by_token bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  IF path = '' THEN
    INSERT INTO crewboard.teams (name) VALUES (of_team) ON CONFLICT DO NOTHING;
    RETURN 0;
  END IF;
  IF NOT crewboard.has_folder(of_team, crewboard.folder_of(path)) THEN RETURN -3; END IF;
  INSERT INTO crewboard.entries (team, folder, name, kind, id, version)
    VALUES (of_team, crewboard.folder_of(path), crewboard.name_of(path), 'folder', nextval('crewboard.numbers'),
      nextval('crewboard.numbers'))
    ON CONFLICT DO NOTHING;
  RETURN 0;
END $$;

CREATE FUNCTION crewboard.remove(of_team text, path text, by_token bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  WITH gone AS (
    DELETE FROM crewboard.entries
      WHERE team = of_team AND folder = crewboard.folder_of(path) AND name = crewboard.name_of(path) RETURNING id
  ) DELETE FROM crewboard.lines USING gone WHERE log = gone.id;
  DELETE FROM crewboard.leases
    WHERE team = of_team AND folder = crewboard.folder_of(path) AND name = crewboard.name_of(path);
  PERFORM crewboard.hint(of_team, path);
  RETURN 0;
END $$;

-- Move a record, log or lease, or a folder with all that is in it. With leases, which their holders lose by that.
CREATE FUNCTION crewboard.move(of_team text, path text, new_path text, by_token bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  inside text := path || '/';
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  IF NOT crewboard.has_folder(of_team, crewboard.folder_of(new_path)) THEN RETURN -3; END IF;
  DELETE FROM crewboard.leases
    WHERE team = of_team AND (folder = path OR left(folder, length(inside)) = inside
      OR (folder = crewboard.folder_of(path) AND name = crewboard.name_of(path)));
  UPDATE crewboard.entries SET folder = new_path || substr(folder, length(path) + 1)
    WHERE team = of_team AND (folder = path OR left(folder, length(inside)) = inside);
  UPDATE crewboard.entries
    SET folder = crewboard.folder_of(new_path), name = crewboard.name_of(new_path)
    WHERE team = of_team AND folder = crewboard.folder_of(path) AND name = crewboard.name_of(path);
  PERFORM crewboard.hint(of_team, path);
  RETURN 0;
END $$;

-- Return the labels that a record needs: `needs` of its JSON object. NULL if they cannot be read.
CREATE FUNCTION crewboard.needs_of(body bytea) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN ARRAY(SELECT jsonb_array_elements_text(coalesce(convert_from(body, 'UTF8')::jsonb -> 'needs', '[]')));
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END $$;

-- Move the oldest records of a folder whose needs are all among the labels, and return their names. Of callers at the
-- same time, one gets a record. NULL if the lease was lost.
CREATE FUNCTION crewboard.claim(
  of_team text, queue text, new_folder text, labels text[], most int, by_token bigint DEFAULT NULL
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  names text[] := '{}';
  each bigint;
  moved text;
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN NULL; END IF;
  -- One by one, because the needs of all of them take long to read.
  FOR each IN SELECT id FROM crewboard.entries
    WHERE team = of_team AND folder = queue AND kind = 'record' ORDER BY changed
  LOOP
    EXIT WHEN cardinality(names) >= most;
    UPDATE crewboard.entries SET folder = new_folder, version = nextval('crewboard.numbers') WHERE id = (
      SELECT id FROM crewboard.entries
        WHERE id = each AND folder = queue AND crewboard.needs_of(body) <@ labels FOR UPDATE SKIP LOCKED
    ) RETURNING name INTO moved;
    IF FOUND THEN names := names || moved; END IF;
  END LOOP;
  RETURN names;
END $$;

CREATE FUNCTION crewboard.purge(of_team text, by_token bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  DELETE FROM crewboard.teams WHERE name = of_team;
  WITH gone AS (DELETE FROM crewboard.entries WHERE team = of_team RETURNING id)
    DELETE FROM crewboard.lines USING gone WHERE log = gone.id;
  DELETE FROM crewboard.leases WHERE team = of_team;
  DELETE FROM crewboard.gone WHERE team = of_team;
  RETURN 0;
END $$;

-- Return the token of a lease that was free, NULL if it is held.
CREATE FUNCTION crewboard.take(
  of_team text, path text, new_holder uuid, ttl double precision, by_token bigint DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  given bigint;
BEGIN
  IF NOT crewboard.may_write(of_team, by_token) THEN RETURN -1; END IF;
  IF NOT crewboard.has_folder(of_team, crewboard.folder_of(path)) THEN RETURN -3; END IF;
  INSERT INTO crewboard.leases AS old (team, folder, name, token, holder, until)
    VALUES (of_team, crewboard.folder_of(path), crewboard.name_of(path), nextval('crewboard.numbers'), new_holder,
      clock_timestamp() + make_interval(secs => ttl))
    ON CONFLICT (team, folder, name) DO UPDATE
      SET token = nextval('crewboard.numbers'), holder = new_holder, said = '',
        until = clock_timestamp() + make_interval(secs => ttl)
      WHERE old.until <= clock_timestamp() OR old.holder = new_holder
    RETURNING token INTO given;
  RETURN given;
END $$;
