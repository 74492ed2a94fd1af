//! The SQLite file: writing and reading of rows, and the size limit.
//!
//! One connection holds the file exclusively (`locking_mode=EXCLUSIVE`), so that no shared memory is mapped and a full
//! disk causes an error, never a signal. The file uses write-ahead logging (WAL): a kill at any moment preserves
//! complete transactions. Rows are ordered by tier and time, so that a batch is written sequentially and old rows are
//! deleted as a range.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use format_version::{NewerFormat, Release};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use super::rollup::Key;
use super::tiers::TIERS;

/// Version of the file. Version 1 has the same tables; its rows are of version 1 as well ([`super::row`]).
const VERSION: i64 = 2;
/// The fact in which a newer format names the first release that reads it, packed ([`Release::unpack`]).
const NEEDS: &str = "needs";
/// Name of the file.
const NAME: &str = "history.db";
/// Name of the file's write-ahead log.
const WAL: &str = "history.db-wal";
/// Name to which a damaged file is moved.
const DAMAGED: &str = "history.db.damaged";
/// Size of a page in bytes: a row of a busy volume fits into a quarter.
const PAGE_BYTES: u64 = 16 << 10;
/// Pages of write-ahead log after which it is checkpointed.
const WAL_PAGES: u32 = 256;
/// Part of the size limit that is reserved for the write-ahead log and a surplus batch, in bytes.
pub const RESERVE_BYTES: u64 = 16 << 20;
/// Maximum number of ranges deleted at one check of the size limit.
const DELETIONS_MAX: usize = 64;

const TABLES: &str = "
    CREATE TABLE facts (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE volumes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE points (
        tier INTEGER NOT NULL, start INTEGER NOT NULL, volume INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (tier, start, volume)
    ) WITHOUT ROWID;";

/// Error of the file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// SQLite error.
    #[error("{}", describe(.0))]
    Sqlite(#[from] rusqlite::Error),
    /// The folder cannot be created, or a file cannot be moved.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A newer version has written it; it is left as it is.
    #[error("{NAME} was {0}; start that version, or move the file away to begin a new history")]
    Newer(NewerFormat),
}

fn describe(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::ReadOnly) => "the file or its disk is read-only".to_owned(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => {
            format!("the file cannot be read or written, its disk may be read-only or failing ({error})")
        }
        _ => error.to_string(),
    }
}

impl FileError {
    /// True if the file itself is damaged.
    fn is_damage(&self) -> bool {
        let FileError::Sqlite(error) = self else { return false };
        matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }
}

/// The open history file.
pub struct File {
    db: Connection,
    folder: PathBuf,
    limit_bytes: u64,
    /// Version that the file has now; the first write raises it to [`VERSION`].
    version: i64,
    /// IDs of subjects in the table `volumes`, by row name.
    ids: BTreeMap<Rc<str>, i64>,
    /// Second before which rows of each tier were deleted early to keep the size limit (facts `cut0` to `cut3`).
    shortened_until: [u64; TIERS.len()],
}

impl File {
    /// Opens or creates the file. A damaged file is moved aside, because current data matter more than old data.
    pub fn open(folder: &Path, limit_bytes: u64) -> Result<File, FileError> {
        std::fs::create_dir_all(folder)?;
        match File::try_open(folder, limit_bytes) {
            Err(error) if error.is_damage() => {
                std::fs::rename(folder.join(NAME), folder.join(DAMAGED))?;
                match std::fs::remove_file(folder.join(WAL)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                    _ => File::try_open(folder, limit_bytes),
                }
            }
            result => result,
        }
    }

    fn try_open(folder: &Path, limit_bytes: u64) -> Result<File, FileError> {
        let mut db = Connection::open(folder.join(NAME))?;
        // This pragma comes first: an earlier access would map shared memory.
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        // The version is checked before any access that changes the file.
        let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version > VERSION {
            // Closing would write the write-ahead log into the file.
            db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            let needs = db.query_row("SELECT number FROM facts WHERE name = ?1", [NEEDS], |row| row.get::<_, i64>(0));
            // The tables of a newer format are unknown.
            let needs = needs.ok().and_then(|packed| Release::unpack(packed as u64));
            return Err(FileError::Newer(NewerFormat::of_format(version as u64, VERSION as u64, needs)));
        }
        db.pragma_update(None, "page_size", PAGE_BYTES as i64)?;
        db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        db.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        db.pragma_update(None, "journal_size_limit", (u64::from(WAL_PAGES) * PAGE_BYTES) as i64)?;
        db.pragma_update(None, "cache_size", -8192)?;
        if version == 0 {
            let transaction = db.transaction()?;
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        }
        let mut file = File {
            db,
            folder: folder.to_owned(),
            limit_bytes,
            version: if version == 0 { VERSION } else { version },
            ids: BTreeMap::new(),
            shortened_until: [0; TIERS.len()],
        };
        for tier in 0..TIERS.len() {
            file.shortened_until[tier] = file.fact(&format!("cut{tier}"))?;
        }
        Ok(file)
    }

    /// A number of the table `facts`; 0 if it is absent.
    fn fact(&self, name: &str) -> Result<u64, FileError> {
        let mut statement = self.db.prepare("SELECT number FROM facts WHERE name = ?1")?;
        let number: Option<i64> = statement.query_row([name], |row| row.get(0)).optional()?;
        Ok(number.unwrap_or(0) as u64)
    }

    /// Second up to which each tier is complete.
    pub fn until(&self) -> Result<[u64; TIERS.len()], FileError> {
        let mut until = [0; TIERS.len()];
        for (tier, until) in until.iter_mut().enumerate() {
            *until = self.fact(&format!("until{tier}"))?;
        }
        Ok(until)
    }

    /// Writes rows and the seconds of completeness in one transaction; rows replace shorter versions of themselves.
    pub fn write(&mut self, rows: &[(Key, Vec<u8>)], until: &[u64; TIERS.len()]) -> Result<(), FileError> {
        let transaction = self.db.transaction()?;
        // A row's version never exceeds that of its file.
        if self.version != VERSION {
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        let mut new_ids: BTreeMap<Rc<str>, i64> = BTreeMap::new();
        {
            let mut replace = transaction
                .prepare("INSERT OR REPLACE INTO points (tier, start, volume, data) VALUES (?1, ?2, ?3, ?4)")?;
            for ((tier, start, name), bytes) in rows {
                let id = match self.ids.get(name).or_else(|| new_ids.get(name)) {
                    Some(id) => *id,
                    None => {
                        let id = id_of(&transaction, name)?;
                        new_ids.insert(name.clone(), id);
                        id
                    }
                };
                replace.execute(params![*tier as i64, *start as i64, id, bytes])?;
            }
            let mut insert = transaction.prepare("INSERT OR REPLACE INTO facts (name, number) VALUES (?1, ?2)")?;
            for (tier, until) in until.iter().enumerate() {
                insert.execute(params![format!("until{tier}"), *until as i64])?;
            }
        }
        transaction.commit()?;
        self.version = VERSION;
        self.ids.append(&mut new_ids);
        Ok(())
    }

    /// Rows of a subject that begin at or after `from` and before `to`.
    pub fn rows(&self, tier: usize, name: &str, from: u64, to: u64) -> Result<BTreeMap<u64, Vec<u8>>, FileError> {
        let mut find = self.db.prepare("SELECT id FROM volumes WHERE name = ?1")?;
        let id: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
        let Some(id) = id else { return Ok(BTreeMap::new()) };
        // Rows of all subjects are adjacent: one lookup for each time instead of one for each row.
        let mut times = self.db.prepare("SELECT min(start) FROM points WHERE tier = ?1 AND start >= ?2")?;
        let mut row = self.db.prepare("SELECT data FROM points WHERE tier = ?1 AND start = ?2 AND volume = ?3")?;
        let mut rows = BTreeMap::new();
        let mut search_from = from;
        loop {
            let next: Option<i64> = times.query_row(params![tier as i64, search_from as i64], |row| row.get(0))?;
            let Some(start) = next.map(|next| next as u64).filter(|next| *next < to) else { return Ok(rows) };
            let data = row.query_row(params![tier as i64, start as i64, id], |row| row.get(0)).optional()?;
            rows.extend(data.map(|data| (start, data)));
            search_from = start + 1;
        }
    }

    /// True if the file has rows of a subject.
    pub fn has_subject(&self, name: &str) -> Result<bool, FileError> {
        let mut find = self.db.prepare("SELECT 1 FROM volumes WHERE name = ?1")?;
        Ok(find.exists([name])?)
    }

    /// All rows of a tier that begin at or after `from`: key and data.
    pub fn all_rows(&self, tier: usize, from: u64) -> Result<Vec<(Key, Vec<u8>)>, FileError> {
        let mut statement = self.db.prepare(
            "SELECT name, start, data FROM points JOIN volumes ON volumes.id = points.volume
             WHERE tier = ?1 AND start >= ?2 ORDER BY volume, start",
        )?;
        let row = |row: &rusqlite::Row<'_>| {
            let key = (tier, row.get::<_, i64>(1)? as u64, row.get::<_, String>(0)?.into());
            Ok((key, row.get(2)?))
        };
        Ok(statement.query_map(params![tier as i64, from as i64], row)?.collect::<Result<_, _>>()?)
    }

    /// Second from which on a tier is available.
    pub fn oldest(&self, tier: usize, now: u64) -> u64 {
        now.saturating_sub(TIERS[tier].keep).max(self.shortened_until[tier])
    }

    /// Second before which a tier was deleted early.
    pub fn shortened_until(&self, tier: usize) -> u64 {
        self.shortened_until[tier]
    }

    /// Size of the file and its write-ahead log in bytes.
    pub fn bytes(&self) -> u64 {
        [NAME, WAL]
            .iter()
            .filter_map(|name| std::fs::metadata(self.folder.join(name)).ok())
            .map(|meta| meta.len())
            .sum()
    }

    /// Deletes expired rows. Beyond the size limit it also deletes the oldest rows of the finest tier, down to the rows
    /// that the next tier is built from, then the rows of the next tier.
    pub fn trim(&mut self, now: u64) -> Result<(), FileError> {
        for (index, tier) in TIERS.iter().enumerate() {
            let end = now.saturating_sub(tier.keep + tier.row + TIERS[2].step);
            self.delete(index, end)?;
        }
        for _ in 0..DELETIONS_MAX {
            if self.used_bytes()? <= self.limit_bytes.saturating_sub(RESERVE_BYTES) || !self.shorten_finest_tier(now)? {
                break;
            }
        }
        // Free pages are reused; they are released only after the size limit was lowered.
        if self.query_number("PRAGMA page_count")? * PAGE_BYTES > self.limit_bytes {
            self.db.execute_batch("PRAGMA incremental_vacuum(1024)")?;
        }
        Ok(())
    }

    fn query_number(&self, sql: &str) -> Result<u64, FileError> {
        Ok(self.db.query_row(sql, [], |row| row.get::<_, i64>(0))? as u64)
    }

    fn used_bytes(&self) -> Result<u64, FileError> {
        Ok((self.query_number("PRAGMA page_count")? - self.query_number("PRAGMA freelist_count")?) * PAGE_BYTES)
    }

    /// Deletes the oldest eighth of the finest tier that exceeds its floor; returns false if none does.
    fn shorten_finest_tier(&mut self, now: u64) -> Result<bool, FileError> {
        for (index, tier) in TIERS.iter().enumerate() {
            let first: Option<i64> =
                self.db.query_row("SELECT min(start) FROM points WHERE tier = ?1", [index as i64], |row| row.get(0))?;
            let Some(first) = first.map(|first| first as u64) else { continue };
            let floor = now.saturating_sub(tier.floor + tier.row);
            if first >= floor {
                continue;
            }
            let end = first + ((now - first) / 8).max(tier.row);
            let end = end.min(floor).max(first + 1);
            self.delete(index, end)?;
            self.shortened_until[index] = end + tier.row;
            let mut insert = self.db.prepare("INSERT OR REPLACE INTO facts (name, number) VALUES (?1, ?2)")?;
            insert.execute(params![format!("cut{index}"), self.shortened_until[index] as i64])?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Deletes rows of a tier that begin before `end`.
    fn delete(&mut self, tier: usize, end: u64) -> Result<(), FileError> {
        let mut delete = self.db.prepare("DELETE FROM points WHERE tier = ?1 AND start < ?2")?;
        delete.execute(params![tier as i64, end as i64])?;
        Ok(())
    }
}

/// ID of a subject in the table `volumes`; adds the subject if it is new.
fn id_of(db: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    db.prepare("INSERT OR IGNORE INTO volumes (name) VALUES (?1)")?.execute([name])?;
    db.prepare("SELECT id FROM volumes WHERE name = ?1")?.query_row([name], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tier: usize, start: u64, name: &str) -> Key {
        (tier, start, name.into())
    }

    #[test]
    fn rows_are_read_in_order_and_longer_rows_replace_shorter_ones() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut file = File::open(folder.path(), 1 << 30).expect("the file opens");
        let rows = [(key(0, 10, "a"), vec![1]), (key(0, 20, "a"), vec![2]), (key(0, 20, "b"), vec![3])];
        file.write(&rows, &[21, 20, 0, 0]).expect("rows are written");
        file.write(&[(key(0, 20, "a"), vec![2, 2])], &[25, 20, 0, 0]).expect("rows are written");
        drop(file);
        let file = File::open(folder.path(), 1 << 30).expect("the file opens again");
        assert!(!folder.path().join("history.db-shm").exists(), "shared memory is mapped");
        assert_eq!(file.rows(0, "a", 0, 100).expect("rows"), BTreeMap::from([(10, vec![1]), (20, vec![2, 2])]));
        assert_eq!(file.rows(0, "a", 11, 20).expect("rows"), BTreeMap::new());
        assert_eq!(file.all_rows(0, 20).expect("rows").len(), 2);
        assert_eq!(file.until().expect("facts"), [25, 20, 0, 0]);
        assert!(file.has_subject("b").expect("the query works") && !file.has_subject("c").expect("the query works"));
    }

    #[test]
    fn invalid_file_is_moved_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(NAME), vec![7; 100_000]).expect("the file is written");
        File::open(folder.path(), 1 << 30).expect("a new file is created");
        assert!(folder.path().join(DAMAGED).exists());
    }

    /// A file of a newer version as a kill leaves it: only the write-ahead log holds the version.
    fn write_newer(folder: &Path, needs: Option<u64>) {
        drop(File::open(folder, 1 << 30).expect("a new file is created"));
        let file = File::open(folder, 1 << 30).expect("the file opens");
        file.db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("the setting is accepted");
        file.db
            .execute_batch("DROP TABLE points; CREATE TABLE curves (data BLOB NOT NULL)")
            .expect("the tables change");
        file.db.pragma_update(None, "user_version", 3).expect("the setting is accepted");
        match needs {
            Some(packed) => {
                let sql = "INSERT INTO facts (name, number) VALUES (?1, ?2)";
                let inserted = file.db.execute(sql, params![NEEDS, packed as i64]);
                assert_eq!(inserted, Ok(1));
            }
            None => file.db.execute_batch("DROP TABLE facts").expect("the table exists"),
        }
    }

    #[test]
    fn newer_file_is_refused_and_left_unchanged() {
        for (needs, requirement) in [(None, "a version that reads format 3"), (Some(0x0001_0004_0002), "Hotset 1.4.2")]
        {
            let folder = tempfile::tempdir().expect("a folder");
            write_newer(folder.path(), needs);
            let content = || {
                let names = std::fs::read_dir(folder.path())
                    .expect("the folder is readable")
                    .map(|entry| entry.expect("a name"));
                let files = names.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("readable")));
                files.collect::<BTreeMap<_, _>>()
            };
            let before = content();
            assert!(
                before.len() == 2 && before.values().all(|bytes| !bytes.is_empty()),
                "the file and its write-ahead log"
            );
            for _ in 0..2 {
                let refused = File::open(folder.path(), 1 << 30).err().expect("a newer format is refused").to_string();
                let expected = "history.db was written by a newer version of Hotset (format 3, this one reads up to \
                                2); needs at least";
                assert_eq!(
                    refused,
                    format!(
                        "{expected} {requirement}; start that version, or move the file away to begin a new history"
                    )
                );
                assert!(content() == before, "the file was changed");
            }
        }
    }

    #[test]
    fn finest_rows_are_deleted_first_beyond_the_size_limit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let limit = RESERVE_BYTES + (8 << 20);
        let mut file = File::open(folder.path(), limit).expect("the file opens");
        let now = 10_000_000;
        let data = |tier: usize| vec![7; 1000 + tier];
        // About 40 MB, of which 30 MB belong to the finest tier.
        let fine: Vec<_> =
            (0..30_000).map(|row| (key(0, now - 3_600 + row / 10, &format!("v{}", row % 10)), data(0))).collect();
        let coarse: Vec<_> = (0..6_000).map(|row| (key(2, now - 2_500_000 + row * 400, "v0"), data(2))).collect();
        let until = [now; 4];
        for batch in fine.chunks(1_000).chain(coarse.chunks(1_000)) {
            file.write(batch, &until).expect("rows are written");
            file.trim(now).expect("rows are deleted");
            assert!(file.bytes() <= limit, "{} bytes", file.bytes());
        }
        assert!(file.shortened_until(0) > now - 3_600 && file.shortened_until(2) == 0, "{:?}", file.shortened_until);
        assert_eq!(file.rows(2, "v0", 0, now).expect("rows").len(), 6_000);
        assert!(file.oldest(0, now) <= now - TIERS[0].floor);
        drop(file);
        // A lower limit applies from the next start on.
        let smaller = RESERVE_BYTES + (2 << 20);
        let mut file = File::open(folder.path(), smaller).expect("the file opens");
        assert!(file.shortened_until(0) > 0);
        file.trim(now).expect("rows are deleted");
        file.write(&[], &until).expect("rows are written");
        assert!(
            file.used_bytes().expect("pages") <= smaller - RESERVE_BYTES && file.shortened_until(2) > 0,
            "{:?}",
            file.shortened_until
        );
    }

    #[test]
    fn expired_rows_are_deleted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut file = File::open(folder.path(), 1 << 30).expect("the file opens");
        let now = 100_000_000;
        let rows: Vec<_> = TIERS
            .iter()
            .enumerate()
            .flat_map(|(index, tier)| {
                [
                    (key(index, now - tier.keep / 2, "v"), vec![1]),
                    (key(index, now - tier.keep - 2 * tier.row - 60, "v"), vec![1]),
                ]
            })
            .collect();
        file.write(&rows, &[now; 4]).expect("rows are written");
        file.trim(now).expect("rows are deleted");
        for tier in 0..TIERS.len() {
            assert_eq!(file.rows(tier, "v", 0, now).expect("rows").len(), 1, "tier {tier}");
            assert_eq!(file.shortened_until(tier), 0);
        }
    }
}
