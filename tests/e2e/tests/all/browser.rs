//! The web page in a real Chromium: `ui/tests` on the real daemon. The file name is early in the alphabet because its
//! tests take longest.

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::daemon::{binary, text_of};
use e2e::fixture::Fixture;
use e2e::http::Http;

/// Folder of the web page's source.
fn ui() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui")
}

/// True when the page has been built; prints `SKIPPED` otherwise.
fn has_page() -> bool {
    let is_built = ui().join("dist/index.html").exists();
    if !is_built {
        eprintln!("SKIPPED: ui/dist is empty: `npm ci && npm run build` in ui/ with Node 20.19 or later");
    }
    is_built
}

#[test]
fn page_assets_are_cached_and_the_page_is_revalidated() {
    if !has_page() {
        return;
    }
    let mut fixture = Fixture::with_volume(1 << 20);
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    // The page is served without a login, because it contains the login form.
    let page = http.request("GET", "/", &["X-Forwarded-For: 10.0.0.7"], "");
    assert_eq!((page.status, page.header("cache-control")), (200, "no-cache"));
    let names: Vec<&str> = page.body.split(['"', '\'']).filter(|text| text.starts_with("./assets/")).collect();
    assert!(names.len() >= 2, "script and style: {}", page.body);
    for name in names {
        let asset = http.get(name.trim_start_matches('.'));
        assert_eq!((asset.status, asset.header("vary")), (200, "accept-encoding"), "{name}");
        assert!(asset.header("cache-control").contains("immutable"), "{name}: {:?}", asset.headers);
    }
    assert_eq!(http.get("/assets/none.js").status, 404);
    assert_eq!(http.get("/assets/index.html").status, 404);
    daemon.stop();
}

#[test]
fn page_passes_one_half_of_its_browser_tests() {
    run_browser_tests(0);
}

#[test]
fn page_passes_the_other_half_of_its_browser_tests() {
    run_browser_tests(1);
}

/// Runs every second file of browser tests, in the order of their sizes, so that both halves take about as long.
fn run_browser_tests(half: usize) {
    let has_chromium = Path::new("/usr/bin/chromium").exists();
    if !has_page() || !has_chromium || !ui().join("node_modules").exists() {
        eprintln!("SKIPPED: the page's tests want /usr/bin/chromium (apt-get install chromium) and `npm ci` in ui/");
        return;
    }
    let entries = std::fs::read_dir(ui().join("tests")).expect("the page has tests").flatten();
    let tests = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".test.js"));
    let mut files: Vec<(u64, PathBuf)> =
        tests.map(|entry| (entry.metadata().map_or(0, |meta| meta.len()), entry.path())).collect();
    files.sort();
    let files: Vec<PathBuf> = files.into_iter().skip(half).step_by(2).map(|(_, path)| path).collect();
    assert!(!files.is_empty());
    // The limit is generous, because the tests wait for the browser often and the machine may be busy.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "900", "node", "--test", "--test-concurrency=1"]).args(files);
    let output = command.env("HOTSET_BIN", binary()).current_dir(ui()).output().expect("node runs");
    assert!(output.status.success(), "{}", text_of(&output));
}
