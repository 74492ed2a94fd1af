// The module that `keys.ts` generates from the documentation at build time.

declare module 'virtual:keys' {
  interface Key {
    name: string;
    /** Example of the notation. */
    form: string;
    /** Default. */
    without: string;
    /** Explanation, with code between backticks. */
    text: string;
  }
  /** In the order of the documentation; `[memory]`, or words for top-level keys. */
  export const TABLES: { name: string; keys: Key[] }[];
}
