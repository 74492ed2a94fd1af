// The module that `keys.ts` generates from the documentation at build time.

declare module 'virtual:keys' {
  interface Key {
    name: string;
    /** Example of the notation. */
    example: string;
    defaultValue: string;
    /** Explanation, with code between backticks. */
    text: string;
  }
  /** In the order of the documentation. A name is that of a TOML table such as `[memory]`, or a heading for top-level keys. */
  export const TABLES: { name: string; keys: Key[] }[];
}
