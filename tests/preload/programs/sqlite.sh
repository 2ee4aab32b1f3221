#!/usr/bin/env bash
# checks: sqlite3: a big script (indexes, full text, json, windows, vacuum): same output and dump;
# integrity_check
# needs: sqlite3=sqlite3
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

n=$((20000 * SCALE))
cat >work.sql <<END
PRAGMA journal_mode = WAL; PRAGMA threads = 2; PRAGMA cache_size = 500;
CREATE TABLE item(id INTEGER PRIMARY KEY, grp INT, name TEXT, body BLOB, price REAL);
WITH RECURSIVE r(i, x) AS (VALUES(1, 4711)
    UNION ALL SELECT i + 1, (x * 1103515245 + 12345) % 2147483648 FROM r WHERE i < $n)
  INSERT INTO item SELECT i, x % 97, printf('name-%d-%x', x % 5000, x), zeroblob(x % 300) || x,
    x / 7.0 FROM r;
CREATE INDEX by_name ON item(name, grp); CREATE INDEX by_price ON item(price) WHERE grp > 20;
SELECT grp, count(*), sum(length(body)), round(avg(price), 3), min(name), max(name) FROM item
  GROUP BY grp ORDER BY grp;
SELECT length(group_concat(name)), count(DISTINCT name) FROM item;
SELECT a.grp, count(*) FROM item a JOIN item b ON a.name = b.name AND a.id < b.id GROUP BY a.grp
  ORDER BY 1;
SELECT id, name, row_number() OVER w, round(sum(price) OVER w, 2) FROM item WHERE id % 50 = 0
  WINDOW w AS (PARTITION BY grp ORDER BY price, id) ORDER BY id;
CREATE VIRTUAL TABLE words USING fts5(text);
INSERT INTO words SELECT replace(name, '-', ' ') || ' common ' || (id % 300) FROM item;
SELECT count(*) FROM words WHERE words MATCH 'common AND 17';
INSERT INTO words(words) VALUES('optimize');
SELECT highlight(words, 0, '[', ']') FROM words WHERE words MATCH '23' ORDER BY rowid LIMIT 20;
CREATE TABLE doc AS SELECT grp, json_group_array(json_object('id', id, 'name', name)) AS j
  FROM (SELECT * FROM item ORDER BY id) WHERE id <= 5000 GROUP BY grp;
SELECT grp, length(j), json_extract(j, '\$[3].name') FROM doc ORDER BY grp;
SELECT sum(json_extract(value, '\$.id')) FROM doc, json_each(doc.j);
BEGIN; UPDATE item SET name = upper(name) || id, body = hex(body) WHERE grp % 3 = 0;
SAVEPOINT s; DELETE FROM item WHERE grp % 5 = 0; ROLLBACK TO s;
DELETE FROM item WHERE grp % 7 = 0; COMMIT;
CREATE TRIGGER log AFTER DELETE ON item BEGIN INSERT INTO words VALUES('gone ' || old.name); END;
DELETE FROM item WHERE id % 11 = 0;
SELECT count(*), sum(length(body)), sum(id) FROM item;
VACUUM; REINDEX; ANALYZE;
SELECT name, length(name) FROM item ORDER BY body, name DESC LIMIT 50 OFFSET 1000;
PRAGMA integrity_check; PRAGMA foreign_key_check;
INSERT INTO words(words) VALUES('integrity-check');
END
plain sqlite3 -bail plain.db <work.sql >out.plain
under sqlite3 -bail under.db <work.sql >out.under 2>sqlite.log
same 'the output of sqlite3' out.plain out.under
grep -qx ok out.under || fail 'integrity_check did not say ok'
plain sqlite3 plain.db .dump >dump.plain
under sqlite3 under.db .dump >dump.under 2>>sqlite.log
same 'the dump' dump.plain dump.under
under sqlite3 copy.db <dump.under >restore.log 2>&1
equal 'integrity_check of the restored dump' ok "$(plain sqlite3 copy.db 'PRAGMA integrity_check')"
mapped sqlite3
ok "output ($(wc -l <out.under) lines), dump and restored dump are the same; integrity_check"
