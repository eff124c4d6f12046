// Scripts share their names where they are joined (views/explorer/data.py), so undefined names are left to tsc.
import js from "@eslint/js";

const rules = {
  ...js.configs.recommended.rules,
  "no-undef": "off",
  "no-unused-vars": ["error", { vars: "local" }],
  eqeqeq: ["error", "smart"],
  "no-var": "error",
  "prefer-const": "error",
};

export default [
  { files: ["**/*.js"], rules, languageOptions: { ecmaVersion: 2024, sourceType: "script" } },
  // The explorer's page calls what is last in the joined script, and a notebook imports it.
  { files: ["**/explorer/page.js"], rules: { "no-unused-vars": "off" }, languageOptions: { sourceType: "module" } },
];
