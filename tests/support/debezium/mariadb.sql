-- mariadb.tsv.gz is what Debezium's MySQL connector said of this on MariaDB 10.11, with
-- `bigint.unsigned.handling.mode=precise`. It finds:
CREATE DATABASE shop;
USE shop;
SET time_zone = '+00:00';
CREATE TABLE item (
  id int PRIMARY KEY, name varchar(20) NOT NULL, price decimal(10,2),
  big bigint unsigned, tiny tinyint(1), bits bit(12), born date, wakes time(6), far time,
  seen datetime(6), seen_ms datetime(3), seen_at timestamp(6) NULL, y year,
  kind enum('a','b'), flags set('x','y','z'), doc json, data varbinary(10), f float, d double, txt longtext);
INSERT INTO item VALUES (
  1, 'one', 12.50, 18446744073709551615, 1, b'000000000011', '2024-02-29', '23:59:59.999999', '-838:59:59',
  '2024-02-29 12:00:00.123456', '2024-02-29 12:00:00.123', '2024-02-29 12:00:00.123456', 2024,
  'b', 'x,z', '{"a": 1.10}', x'00ff10', 1.5, 0.1, repeat('t', 50)), (
  2, 'two', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
-- and follows:
UPDATE item SET price = 13 WHERE id = 1;
BEGIN;
UPDATE item SET name = CONCAT(name, '!');
INSERT INTO item (id, name) VALUES (3, 'three'), (4, 'four');
DELETE FROM item WHERE id = 3;
COMMIT;
FLUSH BINARY LOGS;
UPDATE item SET id = 40 WHERE id = 4;
ALTER TABLE item ADD COLUMN city text;
UPDATE item SET city = 'Oslo' WHERE id = 1;
DELETE FROM item WHERE id = 2;
TRUNCATE item;
INSERT INTO item (id, name) VALUES (9, 'nine');
