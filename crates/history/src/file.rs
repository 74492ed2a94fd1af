//! The SQLite file: rows in, rows out, and its bound.
//!
//! One connection holds the file alone (`locking_mode=EXCLUSIVE`), so that nothing of it is mapped into memory: a disk that is full is an error
//! and never a signal. It is written ahead (WAL): a kill at any moment leaves a file with every transaction whole. Rows are ordered by tier and
//! time, so that a batch is written side by side, and what is old goes in one piece.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use format_version::{NewerFormat, Release};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use super::rollup::Key;
use super::tiers::TIERS;

/// How the file is laid out.
const VERSION: i64 = 1;
/// The fact in which a later format names the first release that reads it, packed ([`Release::unpack`]).
const NEEDS: &str = "needs";
/// Its name.
const NAME: &str = "history.db";
/// What lies beside it while it is written.
const WAL: &str = "history.db-wal";
/// Where one that cannot be read is put.
const DAMAGED: &str = "history.db.damaged";
/// Bytes of a page: a row of a busy volume fits into a quarter of one.
const PAGE_BYTES: u64 = 16 << 10;
/// Pages after which what was written ahead is put into the file.
const WAL_PAGES: u32 = 256;
/// Bytes of the bound that what is written ahead, and a batch too much, may take.
pub const RESERVE_BYTES: u64 = 16 << 20;
/// Pieces that may have to go in one look at the bound.
const CUTS_MAX: usize = 64;

const TABLES: &str = "
    CREATE TABLE facts (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE volumes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE points (
        tier INTEGER NOT NULL, start INTEGER NOT NULL, volume INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (tier, start, volume)
    ) WITHOUT ROWID;";

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// SQLite says so.
    #[error("{}", say(.0))]
    Sqlite(#[from] rusqlite::Error),
    /// The folder cannot be made, or a file not be moved.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A newer version has written it; it is left as it is.
    #[error("{NAME} was {0}; start that version, or move the file away to begin a new history")]
    Newer(NewerFormat),
}

fn say(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::ReadOnly) => "the file or its disk is read-only".to_owned(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => {
            format!("the file cannot be read or written, its disk may be read-only or failing ({error})")
        }
        _ => error.to_string(),
    }
}

impl Trouble {
    /// True where the file itself is no good.
    fn is_damage(&self) -> bool {
        let Trouble::Sqlite(error) = self else { return false };
        matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }
}

/// The open file.
pub struct File {
    db: Connection,
    folder: PathBuf,
    limit_bytes: u64,
    ids: BTreeMap<Rc<str>, i64>,
    /// What of each tier went before its time for want of room: everything before this second.
    cut: [u64; TIERS.len()],
}

impl File {
    /// Opens it, or makes one. One that is damaged is put aside: what was is less than what is.
    pub fn open(folder: &Path, limit_bytes: u64) -> Result<File, Trouble> {
        std::fs::create_dir_all(folder)?;
        match File::try_open(folder, limit_bytes) {
            Err(trouble) if trouble.is_damage() => {
                std::fs::rename(folder.join(NAME), folder.join(DAMAGED))?;
                match std::fs::remove_file(folder.join(WAL)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                    _ => File::try_open(folder, limit_bytes),
                }
            }
            result => result,
        }
    }

    fn try_open(folder: &Path, limit_bytes: u64) -> Result<File, Trouble> {
        let mut db = Connection::open(folder.join(NAME))?;
        // First of all: whoever looks at the file before maps what is shared with others.
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        // Before anything that changes the file.
        let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version > VERSION {
            // Closing would put into the file what was written ahead.
            db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            let needs = db.query_row("SELECT number FROM facts WHERE name = ?1", [NEEDS], |row| row.get::<_, i64>(0));
            // Of the tables of a later format nothing is known.
            let needs = needs.ok().and_then(|packed| Release::unpack(packed as u64));
            return Err(Trouble::Newer(NewerFormat::of_format(version as u64, VERSION as u64, needs)));
        }
        db.pragma_update(None, "page_size", PAGE_BYTES as i64)?;
        db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        db.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        db.pragma_update(None, "journal_size_limit", (u64::from(WAL_PAGES) * PAGE_BYTES) as i64)?;
        db.pragma_update(None, "cache_size", -8192)?;
        if version != VERSION {
            let transaction = db.transaction()?;
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        }
        let mut file = File { db, folder: folder.to_owned(), limit_bytes, ids: BTreeMap::new(), cut: [0; TIERS.len()] };
        for tier in 0..TIERS.len() {
            file.cut[tier] = file.fact(&format!("cut{tier}"))?;
        }
        Ok(file)
    }

    fn fact(&self, name: &str) -> Result<u64, Trouble> {
        let mut found = self.db.prepare("SELECT number FROM facts WHERE name = ?1")?;
        let number: Option<i64> = found.query_row([name], |row| row.get(0)).optional()?;
        Ok(number.unwrap_or(0) as u64)
    }

    /// Up to which second it has everything, by tier.
    pub fn until(&self) -> Result<[u64; TIERS.len()], Trouble> {
        let mut until = [0; TIERS.len()];
        for (tier, until) in until.iter_mut().enumerate() {
            *until = self.fact(&format!("until{tier}"))?;
        }
        Ok(until)
    }

    /// Writes rows, over shorter ones of the same place, and up to which second it now has everything: all of it or nothing.
    pub fn write(&mut self, rows: &[(Key, Vec<u8>)], until: &[u64; TIERS.len()]) -> Result<(), Trouble> {
        let transaction = self.db.transaction()?;
        let mut fresh: BTreeMap<Rc<str>, i64> = BTreeMap::new();
        {
            let mut put = transaction
                .prepare("INSERT OR REPLACE INTO points (tier, start, volume, data) VALUES (?1, ?2, ?3, ?4)")?;
            for ((tier, start, name), bytes) in rows {
                let id = match self.ids.get(name).or_else(|| fresh.get(name)) {
                    Some(id) => *id,
                    None => {
                        let id = id_of(&transaction, name)?;
                        fresh.insert(name.clone(), id);
                        id
                    }
                };
                put.execute(params![*tier as i64, *start as i64, id, bytes])?;
            }
            let mut note = transaction.prepare("INSERT OR REPLACE INTO facts (name, number) VALUES (?1, ?2)")?;
            for (tier, until) in until.iter().enumerate() {
                note.execute(params![format!("until{tier}"), *until as i64])?;
            }
        }
        transaction.commit()?;
        self.ids.append(&mut fresh);
        Ok(())
    }

    /// The rows of a line that begin from `from` on and before `to`.
    pub fn rows(&self, tier: usize, name: &str, from: u64, to: u64) -> Result<BTreeMap<u64, Vec<u8>>, Trouble> {
        let mut find = self.db.prepare("SELECT id FROM volumes WHERE name = ?1")?;
        let id: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
        let Some(id) = id else { return Ok(BTreeMap::new()) };
        // Rows of all volumes lie side by side: one look for each time, not one at each of them.
        let mut times = self.db.prepare("SELECT min(start) FROM points WHERE tier = ?1 AND start >= ?2")?;
        let mut row = self.db.prepare("SELECT data FROM points WHERE tier = ?1 AND start = ?2 AND volume = ?3")?;
        let mut rows = BTreeMap::new();
        let mut at = from;
        loop {
            let next: Option<i64> = times.query_row(params![tier as i64, at as i64], |row| row.get(0))?;
            let Some(start) = next.map(|next| next as u64).filter(|next| *next < to) else { return Ok(rows) };
            let found = row.query_row(params![tier as i64, start as i64, id], |row| row.get(0)).optional()?;
            rows.extend(found.map(|data| (start, data)));
            at = start + 1;
        }
    }

    /// True where it has heard of a volume.
    pub fn knows(&self, name: &str) -> Result<bool, Trouble> {
        let mut find = self.db.prepare("SELECT 1 FROM volumes WHERE name = ?1")?;
        Ok(find.exists([name])?)
    }

    /// Every row of a tier that begins from `from` on: whose, when, what.
    pub fn all_rows(&self, tier: usize, from: u64) -> Result<Vec<(Key, Vec<u8>)>, Trouble> {
        let mut found = self.db.prepare(
            "SELECT name, start, data FROM points JOIN volumes ON volumes.id = points.volume
             WHERE tier = ?1 AND start >= ?2 ORDER BY volume, start",
        )?;
        let row = |row: &rusqlite::Row<'_>| {
            let key = (tier, row.get::<_, i64>(1)? as u64, row.get::<_, String>(0)?.into());
            Ok((key, row.get(2)?))
        };
        Ok(found.query_map(params![tier as i64, from as i64], row)?.collect::<Result<_, _>>()?)
    }

    /// From which second on a tier has what there was.
    pub fn oldest(&self, tier: usize, now: u64) -> u64 {
        now.saturating_sub(TIERS[tier].keep).max(self.cut[tier])
    }

    /// What of a tier went before its time.
    pub fn cut(&self, tier: usize) -> u64 {
        self.cut[tier]
    }

    /// Bytes that it takes, all files together.
    pub fn bytes(&self) -> u64 {
        [NAME, WAL]
            .iter()
            .filter_map(|name| std::fs::metadata(self.folder.join(name)).ok())
            .map(|meta| meta.len())
            .sum()
    }

    /// Lets go what is past its time; and where it takes more than it may, the finest tier's oldest, down to what the next tier is made
    /// of, then the next one's.
    pub fn trim(&mut self, now: u64) -> Result<(), Trouble> {
        for (at, tier) in TIERS.iter().enumerate() {
            let end = now.saturating_sub(tier.keep + tier.row + TIERS[2].step);
            self.delete(at, end)?;
        }
        for _ in 0..CUTS_MAX {
            if self.used_bytes()? <= self.limit_bytes.saturating_sub(RESERVE_BYTES) || !self.cut_a_piece(now)? {
                break;
            }
        }
        // Pages that are free are used again; they go where the bound has become smaller.
        if self.number("PRAGMA page_count")? * PAGE_BYTES > self.limit_bytes {
            self.db.execute_batch("PRAGMA incremental_vacuum(1024)")?;
        }
        Ok(())
    }

    fn number(&self, sql: &str) -> Result<u64, Trouble> {
        Ok(self.db.query_row(sql, [], |row| row.get::<_, i64>(0))? as u64)
    }

    fn used_bytes(&self) -> Result<u64, Trouble> {
        Ok((self.number("PRAGMA page_count")? - self.number("PRAGMA freelist_count")?) * PAGE_BYTES)
    }

    /// Deletes the oldest eighth of the finest tier that has more than its floor; false where none has.
    fn cut_a_piece(&mut self, now: u64) -> Result<bool, Trouble> {
        for (at, tier) in TIERS.iter().enumerate() {
            let first: Option<i64> =
                self.db.query_row("SELECT min(start) FROM points WHERE tier = ?1", [at as i64], |row| row.get(0))?;
            let Some(first) = first.map(|first| first as u64) else { continue };
            let floor = now.saturating_sub(tier.floor + tier.row);
            if first >= floor {
                continue;
            }
            let end = first + ((now - first) / 8).max(tier.row);
            let end = end.min(floor).max(first + 1);
            self.delete(at, end)?;
            self.cut[at] = end + tier.row;
            let mut note = self.db.prepare("INSERT OR REPLACE INTO facts (name, number) VALUES (?1, ?2)")?;
            note.execute(params![format!("cut{at}"), self.cut[at] as i64])?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Deletes rows of a tier that begin before `end`.
    fn delete(&mut self, tier: usize, end: u64) -> Result<(), Trouble> {
        let mut delete = self.db.prepare("DELETE FROM points WHERE tier = ?1 AND start < ?2")?;
        delete.execute(params![tier as i64, end as i64])?;
        Ok(())
    }
}

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
    fn rows_come_back_in_order_and_a_longer_one_takes_a_shorter_ones_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = File::open(folder.path(), 1 << 30).expect("it opens");
        let rows = [(key(0, 10, "a"), vec![1]), (key(0, 20, "a"), vec![2]), (key(0, 20, "b"), vec![3])];
        file.write(&rows, &[21, 20, 0, 0]).expect("it is written");
        file.write(&[(key(0, 20, "a"), vec![2, 2])], &[25, 20, 0, 0]).expect("it is written");
        drop(file);
        let file = File::open(folder.path(), 1 << 30).expect("it opens again");
        assert!(!folder.path().join("history.db-shm").exists(), "it is mapped");
        assert_eq!(file.rows(0, "a", 0, 100).expect("rows"), BTreeMap::from([(10, vec![1]), (20, vec![2, 2])]));
        assert_eq!(file.rows(0, "a", 11, 20).expect("rows"), BTreeMap::new());
        assert_eq!(file.all_rows(0, 20).expect("rows").len(), 2);
        assert_eq!(file.until().expect("facts"), [25, 20, 0, 0]);
        assert!(file.knows("b").expect("it looks") && !file.knows("c").expect("it looks"));
    }

    #[test]
    fn a_file_that_is_none_is_put_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(NAME), vec![7; 100_000]).expect("it is written");
        File::open(folder.path(), 1 << 30).expect("a new one is made");
        assert!(folder.path().join(DAMAGED).exists());
    }

    /// A file of a newer version as a kill leaves it: the version stands in what was written ahead alone.
    fn write_newer(folder: &Path, needs: Option<u64>) {
        drop(File::open(folder, 1 << 30).expect("a new one is made"));
        let file = File::open(folder, 1 << 30).expect("it opens");
        file.db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("it can be set");
        file.db.execute_batch("DROP TABLE points; CREATE TABLE curves (data BLOB NOT NULL)").expect("it is made");
        file.db.pragma_update(None, "user_version", 2).expect("it can be set");
        match needs {
            Some(packed) => {
                let note = "INSERT INTO facts (name, number) VALUES (?1, ?2)";
                let noted = file.db.execute(note, params![NEEDS, packed as i64]);
                assert_eq!(noted, Ok(1));
            }
            None => file.db.execute_batch("DROP TABLE facts").expect("it is there"),
        }
    }

    #[test]
    fn a_newer_file_is_refused_by_its_format_and_stays_as_it_is() {
        for (needs, least) in [(None, "a version that reads format 2"), (Some(0x0001_0004_0002), "Hotset 1.4.2")] {
            let folder = tempfile::tempdir().expect("a folder");
            write_newer(folder.path(), needs);
            let content = || {
                let names = std::fs::read_dir(folder.path()).expect("it is there").map(|entry| entry.expect("a name"));
                let files = names.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("readable")));
                files.collect::<BTreeMap<_, _>>()
            };
            let before = content();
            assert!(before.len() == 2 && before.values().all(|bytes| !bytes.is_empty()), "the file and what is ahead");
            for _ in 0..2 {
                let refused = File::open(folder.path(), 1 << 30).err().expect("a later format").to_string();
                let expected = "history.db was written by a newer version of Hotset (format 2, this one reads up to 1); needs at least";
                assert_eq!(
                    refused,
                    format!("{expected} {least}; start that version, or move the file away to begin a new history")
                );
                assert!(content() == before, "it was changed");
            }
        }
    }

    #[test]
    fn past_the_bound_the_finest_goes_first_and_the_file_stays_below() {
        let folder = tempfile::tempdir().expect("a folder");
        let limit = RESERVE_BYTES + (8 << 20);
        let mut file = File::open(folder.path(), limit).expect("it opens");
        let now = 10_000_000;
        let data = |tier: usize| vec![7; 1000 + tier];
        // Some 40 MB: 30 of the finest.
        let fine: Vec<_> =
            (0..30_000).map(|at| (key(0, now - 3_600 + at / 10, &format!("v{}", at % 10)), data(0))).collect();
        let coarse: Vec<_> = (0..6_000).map(|at| (key(2, now - 2_500_000 + at * 400, "v0"), data(2))).collect();
        let until = [now; 4];
        for batch in fine.chunks(1_000).chain(coarse.chunks(1_000)) {
            file.write(batch, &until).expect("it is written");
            file.trim(now).expect("it is trimmed");
            assert!(file.bytes() <= limit, "{} bytes", file.bytes());
        }
        assert!(file.cut(0) > now - 3_600 && file.cut(2) == 0, "{:?}", file.cut);
        assert_eq!(file.rows(2, "v0", 0, now).expect("rows").len(), 6_000);
        assert!(file.oldest(0, now) <= now - TIERS[0].floor);
        drop(file);
        // A smaller bound holds from the next start on.
        let smaller = RESERVE_BYTES + (2 << 20);
        let mut file = File::open(folder.path(), smaller).expect("it opens");
        assert!(file.cut(0) > 0);
        file.trim(now).expect("it is trimmed");
        file.write(&[], &until).expect("it is written");
        assert!(file.used_bytes().expect("it counts") <= smaller - RESERVE_BYTES && file.cut(2) > 0, "{:?}", file.cut);
    }

    #[test]
    fn what_is_past_its_time_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = File::open(folder.path(), 1 << 30).expect("it opens");
        let now = 100_000_000;
        let rows: Vec<_> = TIERS
            .iter()
            .enumerate()
            .flat_map(|(at, tier)| {
                [
                    (key(at, now - tier.keep / 2, "v"), vec![1]),
                    (key(at, now - tier.keep - 2 * tier.row - 60, "v"), vec![1]),
                ]
            })
            .collect();
        file.write(&rows, &[now; 4]).expect("it is written");
        file.trim(now).expect("it is trimmed");
        for tier in 0..TIERS.len() {
            assert_eq!(file.rows(tier, "v", 0, now).expect("rows").len(), 1, "tier {tier}");
            assert_eq!(file.cut(tier), 0);
        }
    }
}
